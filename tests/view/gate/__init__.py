"""The gate, asked directly: what it answers where a kernel in front of it would have answered first, what it does to an
object that is no longer the one that was meant, and what it leaves in the source.

What a whole session is told stands in conformance/; here is what its cases cannot see.
"""
