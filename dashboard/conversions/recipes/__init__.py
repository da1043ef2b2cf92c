"""The recipes: `table` has a line for each, and each is a program that runs in an environment of its own packages. The programs
import nothing of Slipway but `recipe`, which lies beside them. The table imports `repository`."""
