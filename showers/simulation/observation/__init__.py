"""What an array makes of a shower: signals of the stations, trigger, standard reconstruction."""
