"""What failures cost whole fleets: published failure histories played under recovery policies, and `rekindle plan`.

Pure but for `command` (prints) and `traces` (reads the files that it is given). Prices, ETTR and the
counterfactual are the ledger's own (docs/ledger.md); Rekindle's responses are played through `decide()`. docs/fleet.md
says what is modelled and what is not.
"""
