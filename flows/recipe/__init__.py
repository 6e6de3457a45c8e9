"""What all flows share: a recipe's runner, its outline, its repeated parts and its report."""
