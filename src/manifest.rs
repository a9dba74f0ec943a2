//! What `deploy/navigator.yaml` holds, printed from the constants that the code uses.
