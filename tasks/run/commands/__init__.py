"""The commands of the shell: each module declares `COMMANDS` beside their functions, and the shell finds it.

The modules import what a command needs when it runs, so the process of a stage does not load other commands.
"""
