// module.cpp: deep_ll._native. Python decides, checks and words; this passes integers on.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "bindings/exchange.hpp"
#include "bindings/tiers.hpp"
#include "ep/choices.hpp"

namespace py = pybind11;

namespace deep_ll {

bool python_interrupts() {
    const py::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

namespace {

// Passes on the error that a signal handler raised while a call was waiting.
bool raise_if_interrupted(Exchange& exchange, bool done) {
    if (exchange.report().outcome != WaitOutcome::interrupted) return done;
    exchange.set_interrupted();
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return done;
}

// After an interruption peers wait for what will not come: no call may go on as if nothing had happened.
void refuse_if_interrupted(const Exchange& exchange) {
    if (!exchange.interrupted()) return;
    const py::object error = py::module_::import("deep_ll.errors").attr("OrderError");
    py::set_error(
        error,
        "this buffer cannot be used any more, destroy it and make another: a call was interrupted while it "
        "waited for peers");
    throw py::error_already_set();
}

// Calls a method without the GIL.
template <class... Args>
auto blocking(bool (Exchange::*method)(Args...)) {
    return [method](Exchange& exchange, Args... args) {
        refuse_if_interrupted(exchange);
        bool done = false;
        {
            const py::gil_scoped_release unlocked;
            done = (exchange.*method)(args...);
        }
        return raise_if_interrupted(exchange, done);
    };
}

py::tuple report_of(const Exchange& exchange) {
    py::list missing;
    const WaitReport& report = exchange.report();
    for (std::uint32_t i = 0; i < report.num_missing; ++i)
        missing.append(py::make_tuple(report.missing[i], report.seen_epoch[i]));
    return py::make_tuple(static_cast<int>(report.outcome), static_cast<int>(exchange.phase()),
                          report.expected_epoch, missing);
}

py::object disagreement_of(const Exchange& exchange) {
    const Disagreement& d = exchange.disagreement();
    if (d.peer < 0) return py::none();
    const Greeting& g = d.theirs;
    return py::make_tuple(d.peer, g.num_experts, g.max_tokens, g.hidden, g.num_topk, g.format, d.word);
}

py::object verdict(const ChoiceCheck& check) {
    if (check.what == BadChoice::none) return py::none();
    return py::make_tuple(static_cast<int>(check.what), check.token, check.choice, check.value);
}

py::object copy_choices_of(std::uint64_t indices,
                           bool wide,
                           int num_tokens,
                           const Shape& shape,
                           std::uint64_t out,
                           std::uint64_t dispatched) {
    return verdict(copy_choices(reinterpret_cast<const void*>(indices), wide, num_tokens, shape,
                                reinterpret_cast<std::int32_t*>(out),
                                reinterpret_cast<const std::int32_t*>(dispatched)));
}

void bind_shape(py::module_& m) {
    py::class_<Shape>(m, "Shape")
        .def(py::init([](int num_ranks, int rank, int num_experts, int max_tokens, int hidden, int num_topk,
                         int format) {
                 return Shape(num_ranks, rank, num_experts, max_tokens, hidden, num_topk,
                              static_cast<Format>(format));
             }),
             py::arg("num_ranks"), py::arg("rank"), py::arg("num_experts"), py::arg("max_tokens"),
             py::arg("hidden"), py::arg("num_topk"), py::arg("format"))
        .def_readonly("num_ranks", &Shape::num_ranks)
        .def_readonly("num_experts", &Shape::num_experts)
        .def_readonly("max_tokens", &Shape::max_tokens)
        .def_readonly("hidden", &Shape::hidden)
        .def_readonly("num_topk", &Shape::num_topk)
        .def_property_readonly("format", [](const Shape& s) { return static_cast<int>(s.format); })
        .def_property_readonly("num_local", &Shape::num_local)
        .def_property_readonly("max_rows", &Shape::max_rows)
        .def_property_readonly("scale_words", &Shape::scale_words)
        .def_property_readonly("row_bytes", &Shape::row_bytes)
        .def_property_readonly("label_bytes", [](const Shape& s) { return Label::bytes(s); })
        .def_property_readonly("ledger_bytes", [](const Shape& s) { return Ledger::bytes(s); })
        .def_property_readonly("heap_bytes", [](const Shape& s) { return Window::bytes_for(s); })
        .def_property_readonly("recv_bytes", [](const Shape& s) { return RecvLayout::carve(s).bytes; })
        .def_property_readonly("combine_bytes", [](const Shape& s) { return s.num_rows() * s.bf16_bytes(); })
        .def_property_readonly("recv_offsets", [](const Shape& s) {
            const RecvLayout at = RecvLayout::carve(s);
            return py::make_tuple(at.x, at.labels, at.scales, at.src_info);
        });
    py::class_<CallOptions>(m, "CallOptions")
        .def(py::init([](std::int64_t timeout_ns, bool streaming, bool small, bool columns) {
                 return CallOptions{timeout_ns, streaming, small, columns};
             }),
             py::arg("timeout_ns"), py::arg("streaming"), py::arg("small"), py::arg("columns"));
}

void bind_calls(py::module_& m) {
    py::class_<Batch>(m, "Batch")
        .def(py::init([](std::uint64_t x, int num_tokens, std::uint64_t recv_count,
                         std::uint64_t layout_range, std::uint64_t indices, bool wide) {
            return Batch{x, num_tokens, recv_count, layout_range, indices, wide};
        }));
    py::class_<Answer>(m, "Answer").def(py::init([](std::uint32_t round, std::uint32_t epoch, bool pulled) {
        return Answer{round, epoch, pulled};
    }));
    py::class_<Sum>(m, "Sum").def(
        py::init([](std::uint64_t choices, std::uint64_t weights, std::uint64_t out, int num_tokens) {
            return Sum{choices, weights, out, num_tokens};
        }));
}

void bind_window(py::module_& m) {
    py::class_<Object>(m, "Object")
        .def_readonly("offset", &Object::offset)
        .def_readonly("slot_bytes", &Object::slot_bytes)
        .def_readonly("slots", &Object::slots);
    py::class_<Window>(m, "Window")
        .def_static("carve", &Window::carve, py::arg("num_bytes"), py::arg("num_ranks"))
        .def_readonly("desks", &Window::desks)
        .def_readonly("counts", &Window::counts)
        .def_readonly("recv", &Window::recv)
        .def_readonly("combine", &Window::combine)
        .def_readonly("num_bytes", &Window::bytes)
        .def_property_readonly("max_experts", &Window::max_experts);
}

void bind_exchange(py::module_& m) {
    py::class_<Exchange>(m, "Exchange")
        .def(py::init([](std::vector<std::uint64_t> bases, int rank, std::uint64_t heap_bytes,
                         int num_threads, bool crowded, const std::string& level) {
                 return std::make_unique<Exchange>(std::move(bases), rank, heap_bytes, num_threads, crowded,
                                                   level_named(level));
             }),
             py::arg("bases"), py::arg("rank"), py::arg("heap_bytes"), py::arg("num_threads"),
             py::arg("crowded"), py::arg("level"))
        .def("dispatch_send", blocking(&Exchange::dispatch_send))
        .def("dispatch_receive", blocking(&Exchange::dispatch_receive))
        .def("combine_send", blocking(&Exchange::combine_send))
        .def("combine_receive", blocking(&Exchange::combine_receive))
        .def("await_credit", blocking(&Exchange::await_credit))
        .def("bad_choice", [](const Exchange& e) { return verdict(e.bad_choice()); })
        .def("report", &report_of)
        .def("disagreement", &disagreement_of)
        .def_property_readonly("dispatched", [](const Exchange& e) { return e.progress().dispatched; })
        .def_property_readonly("combined", [](const Exchange& e) { return e.progress().combined; })
        .def_property_readonly("consumed", [](const Exchange& e) { return e.progress().consumed; })
        .def_property_readonly("num_threads", &Exchange::num_threads);
}

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const Kernels* level : runnable_levels()) names.emplace_back(level->level);
    return names;
}

}  // namespace
}  // namespace deep_ll

PYBIND11_MODULE(_native, m) {
    m.doc() = "The native half of deep_ll: see csrc/README.md.";
    deep_ll::bind_shape(m);
    deep_ll::bind_calls(m);
    deep_ll::bind_window(m);
    deep_ll::bind_exchange(m);
    m.def("copy_choices", &deep_ll::copy_choices_of);
    m.def("levels", &deep_ll::level_names);
    m.attr("NONCE_BYTES") = deep_ll::kNonceBytes;
    m.attr("MAX_TOPK") = deep_ll::kMaxTopk;
    m.attr("MAX_TOKENS") = deep_ll::kMaxTokens;
    m.attr("MAX_EXPERTS") = deep_ll::kMaxExperts;
    m.attr("MAX_RANKS") = deep_ll::kMaxRanks;
}
