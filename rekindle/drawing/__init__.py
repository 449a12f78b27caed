"""Pictures of curves: scales and ticks, SVG, and PNG. Standard library only.

matplotlib is 172 MB and takes seconds to import, and pictures are also drawn on head nodes and in training images,
where nothing may be installed.
"""
