"""Rules about a run's numbers: a loss that is none, a loss scale at its floor."""

from __future__ import annotations

from typing import Final

from rekindle.signatures.labels import Label
from rekindle.signatures.rule import Rule

_NUMBER: Final = r"(?:nan|-?inf(?:inity)?)"

NUMBERS: Final[tuple[Rule, ...]] = (
    Rule(
        name="loss_scale_floor",
        label=Label.LOSS_SCALE_COLLAPSE,
        pattern=r"loss[ _]?scale(?:r)?.{0,30}(?:already )?at (?:its )?minimum|cannot decrease (?:loss )?scale anymore"
        r"|minimum loss scale reached|loss scale (?:has )?(?:reached|hit|fallen to) (?:its |the )?(?:minimum|floor)"
        r"|(?:reducing|decreasing|lowering) (?:loss[ _]?scale )?to (?:0?\.\d{1,60}|0(?:\.0{0,60})?|1(?:\.0{0,60})?"
        r"|\d(?:\.\d{1,40})?e-\d{1,4})(?![\d.e])"
        r"|setting loss[ _]?scale to:? (?:0?\.\d{1,60}|\d(?:\.\d{1,40})?e-\d{1,4})(?![\d.e])"
        r"|loss[ _]?scale.{0,40}\b(?:too small|underflow\w{0,2}|collaps\w{1,3})\b",
        example="Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        source="DeepSpeed runtime/fp16/loss_scaler.py; apex amp; fairseq fp16_optimizer; "
        "github.com/ymcui/Chinese-LLaMA-Alpaca/issues/534; github.com/facebookresearch/fairseq/issues/512",
    ),
    Rule(
        name="loss_scale_zero",
        label=Label.LOSS_SCALE_COLLAPSE,
        # A whole 0 is no scale but a setting ("loss_scale": 0 asks DeepSpeed for a dynamic one).
        pattern=r"loss[ _]?scale['\"]?\s{0,3}[:=]\s{0,6}(?:0\.0{0,60}(?![\d])|\d(?:\.\d{1,40})?e-\d{1,4})",
        example=" iteration 1201/ 9000 | lm loss: 9.1E+00 | loss scale: 0.0 | number of skipped iterations:  10 |",
        source="Megatron-LM training log; apex amp",
    ),
    Rule(
        name="nan_iterations",
        label=Label.NAN_LOSS,
        pattern=r"nan iterations\s{0,3}:\s{0,12}[1-9]",
        example=" iteration 9/ 10 | loss scale: 1.0 | number of skipped iterations:   1 | number of nan "
        "iterations:   1 |",
        source="Megatron-LM training log; github.com/deepspeedai/Megatron-DeepSpeed/pull/434",
    ),
    Rule(
        name="nan_loss",
        label=Label.NAN_LOSS,
        pattern=rf"loss\w{{0,12}}['\"]?(?:\s?\(\w{{1,12}}\))?\s{{0,3}}(?:[:=]{{1,2}}|\bis:?|\bwas|\bbec[ao]mes?"
        rf"|\bwent(?: to)?|\s)\s{{0,6}}"
        rf"['\"]?(?:tensor\()?(?:now )?{_NUMBER}\b(?![\w.:/-])"
        r"|loss is (?:not finite|non-?finite)|\bloss (?:became|becomes|went) (?:infinite|nan|non-?finite|inf)"
        r"|grad(?:ient)?(?:ients)?s?[_ ]?norm\w{0,6}['\"]?(?:\s{0,3}[:=]\s{0,6}"
        r"|\s{1,6})['\"]?(?:tensor\()?nan\b(?![\w./-])"
        r"|\b(?:found|detected|encountered|got|unexpected result) (?:a |an )?(?:nan|non-?finite"
        r"|infs?)\w{0,2}\b(?!.{0,12}: ?false)"
        r"|\bnan(?:s|/inf)? (?:or inf(?:inity)? )?(?:loss|was|were|is )?\s?(?:detected|encountered|found"
        r"|gradients?\b|grad[_ ]?norm\b|loss\b)"
        r"(?!\w)|\bnans?(?:/infs?| or infs?)? (?:in |values? in )(?:the )?(?:\w{1,12} )?(?:loss|grad|output|logits"
        r"|weight|param)"
        r"|\breturned nan values\b|non-?finite (?:loss|grad|value)|(?:loss|gradients?|parameters?|logits|weights?"
        r"|activations?)"
        r" (?:has|have|contains?|are|is) (?:nans?|infs?|non-?finite)\b|became infinite or nan"
        r"|\bppl:? nan\b|loss (?:has )?(?:exploded|diverged)",
        example="{'loss': nan, 'grad_norm': nan, 'learning_rate': 9.9e-05, 'epoch': 0.12}",
        source="Hugging Face Trainer, Megatron-LM 'found NaN in local grad norm', torchvision 'Loss is nan, stopping "
        "training', detectron2 'became infinite or NaN', tensorboard 'NaN or Inf found in input tensor'",
    ),
)
