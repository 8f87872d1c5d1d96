"""The live page and the API, `regard serve`.

Requests that arrive together are decoded as one batch, short ones go before long ones, clients take
turns, and work that no client waits for any more is cancelled between two steps of decoding.
"""
