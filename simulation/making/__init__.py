"""Stories made from a seed: the ordinary ones, and those further from the ordinary."""
