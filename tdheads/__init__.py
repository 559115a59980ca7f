"""TensorDict-native policy heads and PPO losses for hard action spaces."""
