"""The monitor in the loops that people have: plain PyTorch, Hugging Face, Lightning, Accelerate, DeepSpeed.

One module per framework, and nothing here imports any of them: `import rekindle.integrations.hf` is what needs
transformers. Each saves with the framework's own saver, at one step on all ranks, and lets the manifest come last.
docs/integrations.md has the lines to add to a script.
"""
