// watch.cpp: numbers and names, as they are.
#include "bindings/watch.hpp"

#include "team/host/watch.hpp"

namespace py = pybind11;

namespace deep_ll {
namespace {

constexpr std::size_t kTextBytes = 4096;

// How often and how long a rank was waited for; classes as {middle, ns: count}.
py::tuple tally_of(const Watch& watch, int kind, int peer) {
    const Tally& tally = watch.tally(kind, peer);
    py::dict classes;
    for (int i = 0; i < Tally::kClasses; ++i)
        if (tally.classes[i] != 0) classes[py::int_(Tally::middle_ns(i))] = tally.classes[i];
    return py::make_tuple(tally.count, tally.total_ns, tally.max_ns, classes);
}

py::list tallies_of(const Watch& watch, int kind) {
    py::list all;
    for (int peer = 0; peer < watch.num_ranks(); ++peer) all.append(tally_of(watch, kind, peer));
    return all;
}

py::dict waits_of(const Watch& watch) {
    py::dict waits;
    for (int kind = 0; kind < Watch::kKinds; ++kind)
        if (watch.num_waits(kind) != 0)
            waits[watch.kind(kind)] = py::make_tuple(watch.num_waits(kind), tallies_of(watch, kind));
    return waits;
}

py::list bytes_of(const Watch& watch) {
    py::list all;
    for (int peer = 0; peer < watch.num_ranks(); ++peer) all.append(watch.bytes(peer));
    return all;
}

py::list events_of(const Watch& watch) {
    py::list all;
    for (const Watch::Event& e : watch.events())
        all.append(py::make_tuple(e.name, e.call, e.start_ns, e.duration_ns, e.epoch, e.peer));
    return all;
}

std::string text_of(const Watch& watch) {
    std::string text(kTextBytes, 0);
    text.resize(watch.describe(text.data(), text.size()));
    return text;
}

}  // namespace

void bind_watch(py::module_& m) {
    py::class_<Watch>(m, "Watch")
        .def("record", &Watch::record)
        .def("events", &events_of)
        .def("num_events", &Watch::num_events)
        .def("show", &Watch::show)
        .def("hide", &Watch::hide)
        .def("describe", &text_of)
        .def("waits", &waits_of)
        .def("bytes", &bytes_of);
}

}  // namespace deep_ll
