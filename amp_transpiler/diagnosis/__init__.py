"""Finds the node that is to blame where a low model is wrong, and the fewest nodes that mend it in float32."""
