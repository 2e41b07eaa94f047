"""Writes cartpole.txt, which contains recorded episodes of Gymnasium's CartPole-v1. tests/apps/cartpole_test.cpp reads
this file.

    pip install gymnasium && python tests/golden/cartpole.py

Each episode has a line `start` with the initial state, a line `actions` with one digit (0 or 1) per step, and lines
`step`. A `step` line contains the number of steps so far, the state, and two flags: whether the episode ended because
the pole fell or the cart left the track (terminated), and whether it ended after the maximum of 500 steps (truncated).
"""
import math
import pathlib

import gymnasium
import numpy as np


def play(start, choose, every):
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.unwrapped.state = np.array(start, dtype=np.float64)
    actions, rows, over = "", [], False
    while not over:
        action = choose(len(actions), env.unwrapped.state)
        _, _, terminated, truncated, _ = env.step(action)
        actions += str(action)
        over = terminated or truncated
        if over or len(actions) % every == 0:
            rows.append((len(actions), *env.unwrapped.state, terminated, truncated))
    lines = ["start " + " ".join(repr(float(v)) for v in start), "actions " + actions]
    lines += ["step %d %s %d %d" % (n, " ".join(repr(float(v)) for v in state), terminated, truncated)
              for n, *state, terminated, truncated in rows]
    return lines


def balance(n, state):
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.5 * theta_dot + 0.02 * x + 0.05 * x_dot > 0)


lines = []
lines += play([0.0, 0.0, 0.0, 0.0], lambda n, s: 1, 1)
lines += play([0.01, -0.02, 0.03, -0.04], lambda n, s: n % 2, 1)
lines += play([-0.05, 0.05, -0.05, 0.05], lambda n, s: int(math.sin(n * n) > 0), 1)
lines += play([2.2, 1.5, 0.0, 0.3], balance, 1)  # this episode ends when the cart leaves the track
lines += play([0.05, 0.03, 0.04, -0.05], balance, 25)  # this episode ends after the maximum of 500 steps
pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
