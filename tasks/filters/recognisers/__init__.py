"""Personal data in text: who looks for what, and who wins where two have found something.

    text ─► places: one pass over digits, one over "@" ─► recognisers of a kind ─► resolve ─► spans (kind, start, end)
      └──► folding: where something is written otherwise, once more ──┘

One recogniser is one small file: `email_address`, `phone`, `ip_address`, `ssn`, `card`, `iban`, `postal_address`. A
recogniser is called only at places that the scan has pointed out, and looks a bounded number of characters to either
side, so the time is linear in the text whatever it holds.
"""
