"""Networks: architectures on pictures, stations and features, and the one loop that trains them."""
