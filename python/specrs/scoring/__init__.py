"""How likely a model holds given texts to be, without ever holding the logits of all positions.

`texts` turns what is to be scored into ids, `evaluate` runs it, `methods` is what `Llama` has.
"""
