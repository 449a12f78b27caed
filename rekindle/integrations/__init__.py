"""The monitor in the loops that people have: plain PyTorch, Hugging Face, Lightning, Accelerate, DeepSpeed.

One module per framework, and nothing here imports any of them: `import rekindle.integrations.hf` is what needs
transformers. Each saves with the framework's own saver, at one step on all ranks, and lets the manifest come last.

A step is one update by the optimizer, counted from 1, in all of them and in `ResumableSampler`: all the batches, of all
ranks, whose gradients go into it have its number, and it is over after the last of them. Steps of a window to skip are
counted as if they had been done, and so are updates that a gradient scaler leaves out.

docs/integrations.md has the lines to add to a script.
"""
