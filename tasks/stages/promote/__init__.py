"""Stages compare and promote: whether a new model is surely better than the champion, and which one is the champion."""
