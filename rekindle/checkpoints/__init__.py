"""Checkpoints as they lie there: found in a listing, judged by their format's rules. Pure, standard library only."""
