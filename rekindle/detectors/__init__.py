"""Streaming detectors, one module each: pure, standard library only.

Nothing is loaded here: most of the service's functions need a word or two of one module.
"""
