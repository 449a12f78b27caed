"""A one-block causal transformer over characters, forward and backward by hand, and Adam.

All parameters live in one flat vector with named views into it: what is averaged between workers, what the
optimiser moves and what a checkpoint stores is then a single array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the model; the defaults give about 64,000 parameters."""

    vocabulary: int
    window: int = 32
    width: int = 64
    heads: int = 4
    hidden: int = 256

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, in the order they lie in the flat vector."""
        v, t, d, f = self.vocabulary, self.window, self.width, self.hidden
        return {
            "symbol": (v, d),
            "position": (t, d),
            "norm1": (2, d),
            "qkv": (d, 3 * d),
            "mix": (d, d),
            "norm2": (2, d),
            "up": (d, f),
            "up_bias": (f,),
            "down": (f, d),
            "down_bias": (d,),
            "norm3": (2, d),
            "out": (d, v),
        }

    def size(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.parameters().values())


class LanguageModel:
    """Predicts the next character. `flat` is the only state."""

    def __init__(self, shape: Shape, *, seed: int, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.shape = shape
        self.flat: Array = np.zeros(shape.size(), dtype=dtype)
        random = np.random.Generator(np.random.PCG64(seed))
        for name, view in self._views(self.flat).items():
            if name.startswith("norm"):
                view[0] = 1.0
            elif not name.endswith("bias"):
                scale = 0.1 if name in ("symbol", "position") else 1.0 / math.sqrt(view.shape[0])
                view[...] = random.standard_normal(view.shape) * scale
        # The largest additions to the mask stay finite: a row of -inf would make NaN where none belongs.
        self._mask = np.triu(np.full((shape.window, shape.window), -1e9, dtype=dtype), k=1)

    def _views(self, flat: Array) -> dict[str, Array]:
        views, start = {}, 0
        for name, shape in self.shape.parameters().items():
            end = start + math.prod(shape)
            views[name] = flat[start:end].reshape(shape)
            start = end
        return views

    def loss_and_gradient(self, inputs: Array, targets: Array, weight: Any = 1.0) -> tuple[float, Array]:
        """Mean cross-entropy in nats times `weight`, and its gradient as a flat vector. `inputs`: `(rows, window)`."""
        p = self._views(self.flat)
        gradient = np.zeros_like(self.flat)
        g = self._views(gradient)
        rows, window = inputs.shape
        d, heads = self.shape.width, self.shape.heads
        per_head = d // heads
        flat_rows = rows * window
        dtype = self.flat.dtype.type

        x0 = (p["symbol"][inputs] + p["position"][:window]).reshape(flat_rows, d)
        n1, back1 = _normalise(x0, p["norm1"])
        qkv = (n1 @ p["qkv"]).reshape(rows, window, 3, heads, per_head).transpose(2, 0, 3, 1, 4)
        q, k, v = (np.ascontiguousarray(part) for part in qkv)
        root = dtype(1.0 / math.sqrt(per_head))
        attention = _softmax(q @ k.transpose(0, 1, 3, 2) * root + self._mask[:window, :window])
        heard = (attention @ v).transpose(0, 2, 1, 3).reshape(flat_rows, d)
        x1 = x0 + heard @ p["mix"]
        n2, back2 = _normalise(x1, p["norm2"])
        rectified = np.maximum(n2 @ p["up"] + p["up_bias"], 0)
        x2 = x1 + rectified @ p["down"] + p["down_bias"]
        n3, back3 = _normalise(x2, p["norm3"])
        probability = _softmax(n3 @ p["out"])
        chosen = (np.arange(flat_rows), targets.reshape(-1))
        loss = float(-np.log(probability[chosen] + dtype(1e-30)).mean() * dtype(weight))

        # Backward, in exactly the opposite order.
        dlogits = probability
        dlogits[chosen] -= 1
        dlogits *= dtype(weight) / dtype(flat_rows)
        g["out"][...] = n3.T @ dlogits
        dx2 = back3(dlogits @ p["out"].T, g["norm3"])
        g["down"][...] = rectified.T @ dx2
        g["down_bias"][...] = dx2.sum(axis=0)
        drectified = (dx2 @ p["down"].T) * (rectified > 0)
        g["up"][...] = n2.T @ drectified
        g["up_bias"][...] = drectified.sum(axis=0)
        dx1 = dx2 + back2(drectified @ p["up"].T, g["norm2"])
        g["mix"][...] = heard.T @ dx1
        dheard = (dx1 @ p["mix"].T).reshape(rows, window, heads, per_head).transpose(0, 2, 1, 3)
        dattention = dheard @ v.transpose(0, 1, 3, 2)
        dv = attention.transpose(0, 1, 3, 2) @ dheard
        dscores = attention * (dattention - (dattention * attention).sum(axis=-1, keepdims=True)) * root
        dq = dscores @ k
        dk = dscores.transpose(0, 1, 3, 2) @ q
        dqkv = np.stack([dq, dk, dv]).transpose(1, 3, 0, 2, 4).reshape(flat_rows, 3 * d)
        g["qkv"][...] = n1.T @ dqkv
        dx0 = (dx1 + back1(dqkv @ p["qkv"].T, g["norm1"])).reshape(rows, window, d)
        g["position"][:window] = dx0.sum(axis=0)
        np.add.at(g["symbol"], inputs, dx0)
        return loss, gradient


def _softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shifted /= shifted.sum(axis=-1, keepdims=True)
    result: Array = shifted
    return result


def _normalise(x: Array, gain_and_bias: Array) -> tuple[Array, Any]:
    """Layer normalisation over the last axis, and the function that carries a gradient back through it."""
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(_EPSILON))
    unit = centred * inverse

    def back(dy: Array, into: Array) -> Array:
        into[0] = (dy * unit).sum(axis=0)
        into[1] = dy.sum(axis=0)
        dunit = dy * gain_and_bias[0]
        along = (dunit * unit).mean(axis=-1, keepdims=True)
        result: Array = inverse * (dunit - dunit.mean(axis=-1, keepdims=True) - unit * along)
        return result

    return unit * gain_and_bias[0] + gain_and_bias[1], back


class Adam:
    """Adam with warm-up and clipping by the global norm. State: two vectors and the count of updates."""

    def __init__(self, size: int, *, rate: float = 3e-3, warmup: int = 20, clip: float = 1.0) -> None:
        self.first: Array = np.zeros(size, dtype=np.float32)
        self.second: Array = np.zeros(size, dtype=np.float32)
        self.updates = 0
        self._rate, self._warmup, self._clip = rate, warmup, clip

    def apply(self, parameters: Array, gradient: Array) -> None:
        """Move `parameters` in place."""
        norm = float(np.sqrt((gradient * gradient).sum()))
        # A norm that is NaN is not larger than the clip: the poison passes through, as it does in real trainers.
        if norm > self._clip:
            gradient = gradient * np.float32(self._clip / norm)
        self.updates += 1
        self.first *= np.float32(0.9)
        self.first += np.float32(0.1) * gradient
        self.second *= np.float32(0.99)
        self.second += np.float32(0.01) * gradient * gradient
        rate = self._rate * min(1.0, self.updates / self._warmup)
        step = np.float32(rate / (1 - 0.9**self.updates))
        root = np.sqrt(self.second * np.float32(1 / (1 - 0.99**self.updates))) + np.float32(1e-8)
        parameters -= step * self.first / root
