// watch.hpp: what a rank has waited for, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace deep_ll {

void bind_watch(pybind11::module_& m);

}  // namespace deep_ll
