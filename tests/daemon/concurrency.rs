//! Two and more at once: daemons, starts, cancels, clients.
