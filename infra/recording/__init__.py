"""The README's recording: `make demo` played in a terminal of its own, and the terminal as a moving picture.

`python -m infra.recording` (`make recording`) writes docs/demo.svg. The asciicast is kept in build/recording.
"""
