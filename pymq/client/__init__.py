"""What users hold: client, producer, consumer, and the machines behind them."""
