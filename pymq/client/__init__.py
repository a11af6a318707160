"""The client as users see it, its producers and consumers, and the machines behind them."""
