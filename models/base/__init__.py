"""What every learner is made of: interface, description, inputs, saving, averages."""
