"""The dossier of a model: what it was trained on, with what right, and what was left out, for an auditor."""
