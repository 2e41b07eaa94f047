"""Tapestry, a deep-learning framework in C++. This module starts the programs of the wheel; it has no API for Python.

`tapestry-config` prints where the headers, the library and the CMake package are.
"""
import os
import sys


def run_program():
    """Replaces this process by the program of the wheel that has this script's name."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    os.execv(os.path.join(folder, os.path.basename(sys.argv[0])), sys.argv)
