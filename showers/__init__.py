"""What an event is and where events come from: schema, dataset folders, cuts, array geometry, simulation."""
