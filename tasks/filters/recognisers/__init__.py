"""Recognisers of personal data in text, and the resolution of overlapping matches.

    text ─► find_candidates: one pass over digits, one over "@" ─► recognisers ─► resolve ─► spans (kind, start, end)
      └──► fold: a second pass over the normalized text, if it differs ──┘

The recognisers are in `email_address`, `phone`, `numbers` (cards, IBANs, US social security numbers, IP addresses),
`national_id`, `postal_address` (Latin script), `postcode_address` and `street_address` (further countries and scripts).
A recogniser is called only at candidate positions of the scan, and examines a bounded number of
characters on either side, so the time is linear in the length of any text.
"""
