"""`radixserve doctor`: whether this machine can serve with these flags, and what to do if not.

`checks.py` finds out, `command.py` prints. What a check needs is imported within it, so that a
package that is missing costs that check alone.
"""
