// link.hpp: the link to peers whose memory cannot be mapped, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace deep_ll {

class Link;

// LinkLanding, and UcxLink where UCX's headers were found at build time.
void bind_link(pybind11::module_& m);

// The link behind a UcxLink of Python.
Link& link_of(const pybind11::object& link);

}  // namespace deep_ll
