"""What an operator's tools ask: is it alive, is it ready, how is it doing."""
