"""Rendering: pages whose text is made by scripts are shown by a browser and stored as it shows them."""
