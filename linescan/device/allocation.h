// How the process gives memory back to the system.
#pragma once

namespace linescan {

// Tells the C library to keep freed memory for the next allocation instead of returning it.
// Activations of tens of megabytes are freed and taken again at every step; given back each time,
// every page of them has to be faulted in and zeroed anew. For
// programs to call once at start; a library has no business changing its host's policy.
void keep_freed_memory();

}  // namespace linescan
