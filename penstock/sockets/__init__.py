"""What both ways through the edge, collect and serve, need of a connection that stays: frames, pings, the way out."""
