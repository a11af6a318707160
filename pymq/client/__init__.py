"""The public client, its producers and consumers, and the state machines behind them."""
