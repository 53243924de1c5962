//! Requests that overstep, by both ways out.
