"""A real deep Q-network (Mnih et al., Nature 2015) in NumPy, on a cart with a pole: its temporal-difference losses.

Two hidden layers, a replay memory, a target network copied every few hundred steps, epsilon-greedy play, Adam. It
learns: episodes grow from about 20 to more than 100 steps, while its loss rises with the values that it learns.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HIDDEN, MEMORY, START = 32, 10_000, 500
MAX_STEPS = 200  # of an episode


class Cart:
    """The cart and pole of Barto, Sutton and Anderson (1983), with the constants of Gymnasium's CartPole-v1."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.state = self.reset()

    def reset(self) -> Array:
        self.age = 0
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action: int) -> tuple[Array, float, bool]:
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        cos, sin = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * turn * turn * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = np.array([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning])
        self.age += 1
        has_fallen = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095)
        return self.state, 1.0, has_fallen


class Network:
    """States to the values of two actions."""

    def __init__(self, rng: np.random.Generator) -> None:
        sizes = (4, HIDDEN, HIDDEN, 2)
        self.weights = [
            part
            for inputs, outputs in pairwise(sizes)
            for part in (rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)), np.zeros(outputs))
        ]
        self.means = [np.zeros_like(part) for part in self.weights]
        self.squares = [np.zeros_like(part) for part in self.weights]
        self.updates = 0

    def __call__(self, states: Array) -> Array:
        return self._layers(states)[-1]

    def _layers(self, states: Array) -> list[Array]:
        w = self.weights
        first = np.maximum(states @ w[0] + w[1], 0)
        second = np.maximum(first @ w[2] + w[3], 0)
        return [states, first, second, second @ w[4] + w[5]]

    def learn(self, states: Array, actions: NDArray[np.int64], targets: Array, rate: float) -> float:
        """One step of Adam on the mean squared error. Returns the loss before it."""
        layers = self._layers(states)
        rows = np.arange(len(actions))
        error = layers[3][rows, actions] - targets
        back = np.zeros_like(layers[3])
        back[rows, actions] = 2 * error / len(actions)
        slopes: list[Array] = []
        for layer in (2, 1, 0):
            slopes = [layers[layer].T @ back, back.sum(axis=0), *slopes]
            back = (back @ self.weights[2 * layer].T) * (layers[layer] > 0)
        self.updates += 1
        size = rate * np.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates)
        for part, slope, mean, square in zip(self.weights, slopes, self.means, self.squares, strict=True):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope * slope - square)
            part -= size * mean / (np.sqrt(square) + 1e-8)
        return float((error * error).mean())

    def copy_from(self, other: Network) -> None:
        self.weights = [part.copy() for part in other.weights]


def train(rng: np.random.Generator, steps: int) -> tuple[Array, list[int]]:
    """The loss of each of so many steps, and the lengths of the episodes on the way."""
    cart, online, target = Cart(rng), Network(rng), Network(rng)
    target.copy_from(online)
    rate, sync = 10 ** rng.uniform(-3.5, -2.7), int(rng.choice([200, 500, 1000]))
    states, after = np.zeros((MEMORY, 4)), np.zeros((MEMORY, 4))
    actions = np.zeros(MEMORY, dtype=np.int64)
    rewards, ends = np.zeros(MEMORY), np.zeros(MEMORY)
    losses, episodes = np.empty(steps), []
    state = cart.reset()
    for at in range(steps + START):
        slot = at % MEMORY
        greedy = rng.random() > max(0.05, 1 - at / 5000)
        action = int(np.argmax(online(state[None])[0])) if greedy else int(rng.integers(2))
        states[slot], actions[slot] = state, action
        state, rewards[slot], is_over = cart.step(action)
        after[slot], ends[slot] = state, float(is_over)
        if is_over or cart.age >= MAX_STEPS:
            episodes.append(cart.age)
            state = cart.reset()
        if at < START:
            continue
        pick = rng.integers(0, min(at + 1, MEMORY), 32)
        targets = rewards[pick] + 0.99 * (1 - ends[pick]) * target(after[pick]).max(axis=1)
        losses[at - START] = online.learn(states[pick], actions[pick], targets, rate)
        if at % sync == 0:
            target.copy_from(online)
    return losses, episodes
