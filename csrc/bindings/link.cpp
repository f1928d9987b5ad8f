// link.cpp: the link as classes of Python. Addresses are integers, messages are bytes.
#include "bindings/link.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "symm/landing.hpp"
#if DEEP_LL_HAVE_UCX
#include "symm/ucx/ucx_link.hpp"
#endif

namespace py = pybind11;

namespace deep_ll {
namespace {

Secret secret_of(const std::string& bytes) {
    Secret secret{};
    if (bytes.size() != secret.size()) throw std::invalid_argument("the secret must have 32 bytes");
    std::copy(bytes.begin(), bytes.end(), secret.begin());
    return secret;
}

LandingPlace place_of(
    int rank, int size, std::uint64_t heap_address, std::uint64_t heap_bytes, const std::string& secret) {
    return {heap_address, heap_bytes, secret_of(secret), rank, size};
}

py::dict dict_of(const LinkStats& stats) {
    py::dict dict;
    dict["puts"] = stats.puts;
    dict["signals"] = stats.signals;
    dict["bytes_sent"] = stats.bytes_sent;
    dict["messages_sent"] = stats.messages_sent;
    dict["bytes_landed"] = stats.bytes_landed;
    dict["messages_landed"] = stats.messages_landed;
    dict["held_back"] = stats.held_back;
    dict["dropped"] = stats.dropped;
    return dict;
}

// The receiving half alone, for tests.
void bind_landing(py::module_& m) {
    py::class_<Landing>(m, "LinkLanding")
        .def(py::init([](int rank, int size, std::uint64_t heap_address, std::uint64_t heap_bytes,
                         const std::string& secret, std::uint64_t first_number) {
                 return std::make_unique<Landing>(place_of(rank, size, heap_address, heap_bytes, secret),
                                                  first_number);
             }),
             py::arg("rank"), py::arg("size"), py::arg("heap_address"), py::arg("heap_bytes"),
             py::arg("secret"), py::arg("first_number") = 0)
        .def("land",
             [](Landing& landing, const std::string& message) {
                 return landing.land(reinterpret_cast<const std::uint8_t*>(message.data()), message.size());
             })
        .def("stats",
             [](const Landing& landing, int sender) {
                 LinkStats stats{};
                 landing.describe(sender, stats);
                 return dict_of(stats);
             })
        .def("begin", &Landing::begin)
        .def_property_readonly("dropped", &Landing::dropped);
}

#if DEEP_LL_HAVE_UCX
using Unlocked = py::call_guard<py::gil_scoped_release>;

void put(UcxLink& link, int peer, std::uint64_t offset, std::uint64_t from, std::uint64_t bytes) {
    link.put(peer, offset, reinterpret_cast<const void*>(from), bytes);
}

void signal(UcxLink& link, int peer, std::uint64_t offset, std::uint64_t word) {
    static_cast<Link&>(link).signal(peer, offset, word);
}

// Not with the GIL: who fills a message may be asking Python whether to go on.
LinkStats unlocked_stats(UcxLink& link, int peer) {
    const py::gil_scoped_release unlocked;
    return link.stats(peer);
}

void bind_ucx_link(py::module_& m) {
    py::register_exception<LinkError>(m, "LinkError", PyExc_RuntimeError);
    py::class_<UcxLink>(m, "UcxLink")
        .def(py::init([](int rank, int size, std::uint64_t heap_address, std::uint64_t heap_bytes,
                         const std::string& secret, const std::string& net_device,
                         const std::string& library_path, std::int64_t patience_ns) {
                 return std::make_unique<UcxLink>(place_of(rank, size, heap_address, heap_bytes, secret),
                                                  WorkerOptions{library_path, net_device, size}, patience_ns);
             }),
             py::arg("rank"), py::arg("size"), py::arg("heap_address"), py::arg("heap_bytes"),
             py::arg("secret"), py::arg("net_device"), py::arg("library_path"), py::arg("patience_ns") = 0)
        .def("address", [](const UcxLink& link) { return py::bytes(link.address()); })
        .def("expect_anew", &UcxLink::expect_anew, Unlocked())
        .def("connect", &UcxLink::connect, Unlocked())
        .def("meet", &UcxLink::meet, Unlocked())
        .def("put", &put, Unlocked())
        .def("signal", &signal, Unlocked())
        .def("progress", &UcxLink::progress, Unlocked())
        .def("rest", &UcxLink::rest, Unlocked())
        .def("dead", &UcxLink::dead)
        .def("take_back", &UcxLink::take_back, Unlocked())
        .def("why_dead", &UcxLink::why_dead, Unlocked())
        .def("stats", [](UcxLink& link, int peer) { return dict_of(unlocked_stats(link, peer)); })
        .def_property_readonly("dropped", &UcxLink::dropped)
        .def_property_readonly("version", &UcxLink::version)
        .def("close", &UcxLink::close, Unlocked())
        .def("send_raw", [](UcxLink& link, int peer, const std::string& message) {
            if (message.size() > kMessageBytes) throw std::invalid_argument("longer than any message");
            const py::gil_scoped_release unlocked;
            link.send_raw(peer, message.data(), message.size());
        });
}
#endif

}  // namespace

Link& link_of(const py::object& link) {
#if DEEP_LL_HAVE_UCX
    return link.cast<UcxLink&>();
#else
    throw std::invalid_argument("this build has no link: " + std::string(py::str(link)));
#endif
}

void bind_link(py::module_& m) {
    bind_landing(m);
    m.attr("HEAP_HEADER_BYTES") = sizeof(HeapHeader);
    m.attr("MESSAGE_BYTES") = kMessageBytes;
    m.attr("MESSAGES_PER_PEER") = kMessagesPerPeer;
#if DEEP_LL_HAVE_UCX
    bind_ucx_link(m);
    m.attr("HAVE_UCX") = true;
#else
    m.attr("HAVE_UCX") = false;
#endif
}

}  // namespace deep_ll
