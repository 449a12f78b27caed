"""Pictures of curves: scales, ticks and SVG. Standard library only.

matplotlib is 172 MB and takes seconds to import, and pictures are also drawn on head nodes and in training images,
where nothing may be installed.
"""
