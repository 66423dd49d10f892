"""What a training will need before it is booked: memory, communication, devices. Formulas, nothing measured."""
