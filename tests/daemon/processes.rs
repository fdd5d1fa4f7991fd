//! What agents do to processes, pipes and output.
