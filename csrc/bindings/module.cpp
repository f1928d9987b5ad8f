// module.cpp: deep_ll._native. Python decides, checks and words; this passes integers on.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <memory>

#include "bindings/launches.hpp"
#include "bindings/link.hpp"
#include "bindings/tiers.hpp"
#include "bindings/watch.hpp"
#include "symm/network.hpp"
#include "team/host/faults.hpp"

namespace py = pybind11;

namespace deep_ll {

bool python_interrupts() {
    const py::gil_scoped_acquire gil;
    // Asked again after an answer that ended only a part of a call, it is still so.
    return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

namespace {

// Passes on the error that a signal handler raised while a call was waiting.
bool raise_if_interrupted(Exchange& exchange, bool done) {
    const bool waited = exchange.verdict().wait.outcome == WaitOutcome::interrupted;
    if (!waited && PyErr_Occurred() == nullptr) return done;
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

py::tuple report_of(const Verdict& verdict) {
    py::list missing;
    const WaitReport& report = verdict.wait;
    for (std::uint32_t i = 0; i < report.num_missing; ++i)
        missing.append(py::make_tuple(report.missing[i], report.seen_epoch[i]));
    return py::make_tuple(static_cast<int>(report.outcome), report.phase, report.expected_epoch, missing);
}

py::tuple tuple_of(const Greeting& g) {
    return py::make_tuple(g.num_experts, g.max_tokens, g.hidden, g.num_topk, g.format, g.recv_slot);
}

// All of Progress but what ends with a buffer.
using ProgressTuple = std::array<std::uint32_t, 9>;

ProgressTuple tuple_of(const Progress& p) {
    return {p.dispatched,  p.combined,    p.consumed, p.told_consumed, p.received[0], p.received[1],
            p.returned[0], p.returned[1], p.met};
}

Progress progress_of(const ProgressTuple& t) {
    return {t[0], t[1], t[2], t[3], {t[4], t[5]}, {t[6], t[7]}, t[8], 0};
}

py::object disagreement_of(const Verdict& verdict) {
    const Disagreement& d = verdict.disagreement;
    if (d.peer < 0) return py::none();
    return py::make_tuple(d.peer, static_cast<int>(d.phase), tuple_of(d.theirs), tuple_of(d.ours),
                          d.their_value, d.our_value);
}

// What a peer left that cannot be: of what, peer, phase, place, found, bound.
py::object nonsense_of(const Verdict& verdict) {
    constexpr int kEpoch = 4;
    const WaitReport& wait = verdict.wait;
    if (wait.outcome == WaitOutcome::beyond)
        return py::make_tuple(kEpoch, wait.missing[0], wait.phase, wait.expected_epoch, wait.seen_epoch[0],
                              wait.last_epoch);
    const Nonsense& n = verdict.nonsense;
    if (n.of == Nonsense::Of::nothing) return py::none();
    return py::make_tuple(static_cast<int>(n.of), n.peer, static_cast<int>(n.phase), n.place, n.found,
                          n.bound);
}

py::object bad_choice_of(const ChoiceCheck& check) {
    if (check.what == BadChoice::none) return py::none();
    return py::make_tuple(static_cast<int>(check.what), check.token, check.choice, check.value);
}

py::object copy_choices_of(std::uint64_t indices,
                           bool wide,
                           int num_tokens,
                           const Shape& shape,
                           std::uint64_t out,
                           std::uint64_t dispatched) {
    const Choices choices{reinterpret_cast<const void*>(indices), wide,
                          reinterpret_cast<const std::int32_t*>(dispatched)};
    return bad_choice_of(copy_choices(choices, num_tokens, shape, reinterpret_cast<std::int32_t*>(out)));
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
        .def_readonly("experts_per_rank", &Shape::experts_per_rank)
        .def_property_readonly("max_rows", &Shape::max_rows)
        .def_property_readonly("scale_words", &Shape::scale_words)
        .def_property_readonly("row_bytes", &Shape::row_bytes)
        .def_property_readonly("label_bytes", [](const Shape& s) { return Label::bytes(s); })
        .def_property_readonly("ledger_bytes", [](const Shape& s) { return Ledger::bytes(s); })
        .def_property_readonly("heap_bytes", [](const Shape& s) { return Window::bytes_for(s); })
        .def_property_readonly("network_slot_bytes", &Window::slot_bytes_with_network)
        .def_property_readonly("recv_bytes", [](const Shape& s) { return RecvLayout::carve(s).bytes; })
        .def_property_readonly("combine_bytes", [](const Shape& s) { return s.num_rows() * s.bf16_bytes(); })
        .def_property_readonly("recv_offsets", [](const Shape& s) {
            const RecvLayout at = RecvLayout::carve(s);
            return py::make_tuple(at.x, at.labels, at.scales, at.src_info);
        });
    py::class_<CallOptions>(m, "CallOptions")
        .def(py::init(
                 [](std::int64_t timeout_ns, bool streaming, bool small, bool columns, std::uint64_t costs) {
                     return CallOptions{timeout_ns, streaming, small, columns, costs};
                 }),
             py::arg("timeout_ns"), py::arg("streaming"), py::arg("small"), py::arg("columns"),
             py::arg("costs") = 0)
        .def_readonly("timeout_ns", &CallOptions::timeout_ns);
}

void bind_calls(py::module_& m) {
    py::class_<Batch>(m, "Batch")
        .def(py::init([](std::uint64_t x, int num_tokens, std::uint64_t recv_count,
                         std::uint64_t layout_range, std::uint32_t slot, std::uint64_t indices, bool wide) {
            return Batch{x, num_tokens, recv_count, layout_range, slot, indices, wide};
        }));
    py::class_<Answer>(m, "Answer")
        .def(py::init([](std::uint32_t recv_slot, std::uint32_t combine_slot, bool pulled, bool logfmt,
                         std::uint64_t layout_range) {
            return Answer{recv_slot, combine_slot, pulled, logfmt, layout_range};
        }));
    py::class_<Sum>(m, "Sum").def(py::init([](std::uint64_t choices, std::uint64_t weights, std::uint64_t out,
                                              int num_tokens, std::uint64_t indices, bool wide) {
                                      return Sum{choices, weights, out, num_tokens, indices, wide};
                                  }),
                                  py::arg("choices"), py::arg("weights"), py::arg("out"),
                                  py::arg("num_tokens"), py::arg("indices") = 0, py::arg("wide") = false);
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
        .def_readonly("notes", &Window::notes)
        .def_readonly("views", &Window::views)
        .def_readonly("grants", &Window::grants)
        .def_readonly("recv", &Window::recv)
        .def_readonly("combine", &Window::combine)
        .def_readonly("mail", &Window::mail)
        .def("outputs", &Window::outputs)
        .def_readonly("num_bytes", &Window::bytes)
        .def_property_readonly("max_experts", &Window::max_experts);
}

void bind_exchange(py::module_& m) {
    py::class_<Exchange>(m, "Exchange")
        .def_property_readonly("watch", &Exchange::watch, py::return_value_policy::reference_internal)
        .def(py::init([](std::vector<std::uint64_t> bases, int rank, std::uint64_t heap_bytes,
                         int num_threads, bool crowded, const std::string& level) {
                 return std::make_unique<Exchange>(std::move(bases), rank, heap_bytes, num_threads, crowded,
                                                   level_named(level));
             }),
             py::arg("bases"), py::arg("rank"), py::arg("heap_bytes"), py::arg("num_threads"),
             py::arg("crowded"), py::arg("level"))
        .def(
            "use_link",
            [](Exchange& e, const py::object& link, std::vector<std::uint8_t> linked) {
                e.use_link(link_of(link), std::move(linked));
            },
            py::keep_alive<1, 2>())
        .def("dispatch_send", blocking(&Exchange::dispatch_send))
        .def("dispatch_receive", blocking(&Exchange::dispatch_receive))
        .def("combine_send", blocking(&Exchange::combine_send))
        .def("combine_receive", blocking(&Exchange::combine_receive))
        .def("await_credit", blocking(&Exchange::await_credit))
        .def("use_mask", &Exchange::use_mask)
        .def("replace", &Exchange::replace)
        .def("resume", [](Exchange& e, const ProgressTuple& progress) { e.resume(progress_of(progress)); })
        .def_property_readonly("progress", [](const Exchange& e) { return tuple_of(e.progress()); })
        .def("meet", blocking(&Exchange::meet))
        .def("bad_choice", [](const Exchange& e) { return bad_choice_of(e.verdict().bad_choice); })
        .def("report", [](const Exchange& e) { return report_of(e.verdict()); })
        .def("disagreement", [](const Exchange& e) { return disagreement_of(e.verdict()); })
        .def("nonsense", [](const Exchange& e) { return nonsense_of(e.verdict()); })
        .def_property_readonly("dispatched", [](const Exchange& e) { return e.progress().dispatched; })
        .def_property_readonly("combined", [](const Exchange& e) { return e.progress().combined; })
        .def_property_readonly("consumed", [](const Exchange& e) { return e.progress().consumed; })
        .def_property_readonly("num_threads", &Exchange::num_threads);
}

template <class T>
py::bytearray bytes_of(const T& launch) {
    return {reinterpret_cast<const char*>(&launch), sizeof launch};
}

// What a kernel told the host, and that it was heard.
py::object take_bad_choice(const Launches& launches) {
    const std::atomic_ref<std::uint32_t> told(launches.host().verdict.has_bad_choice);
    if (told.load(std::memory_order_acquire) == 0) return py::none();
    const py::object bad = bad_choice_of(launches.host().verdict.bad_choice);
    told.store(0, std::memory_order_relaxed);
    return bad;
}

void bind_launches(py::module_& m) {
    py::class_<Launches>(m, "Launches")
        .def(py::init([](std::uint64_t bases, int rank, int num_ranks, std::uint64_t heap_bytes,
                         std::uint64_t device_state, std::uint64_t host_state, std::uint64_t host_view,
                         std::int64_t timeout_ns, std::uint64_t mask, std::uint64_t network,
                         std::uint64_t linked) {
                 const DeviceHeap heap{bases, rank, num_ranks, heap_bytes, mask, network, linked};
                 return std::make_unique<Launches>(heap, device_state, host_state, host_view, timeout_ns);
             }),
             py::arg("bases"), py::arg("rank"), py::arg("num_ranks"), py::arg("heap_bytes"),
             py::arg("device_state"), py::arg("host_state"), py::arg("host_view"), py::arg("timeout_ns"),
             py::arg("mask") = 0, py::arg("network") = 0, py::arg("linked") = 0)
        .def_static("network",
                    [](std::uint64_t queues, int num_queues, std::uint64_t sent, std::uint64_t mail) {
                        return bytes_of(Network{reinterpret_cast<int*>(queues), num_queues,
                                                reinterpret_cast<std::uint32_t*>(sent), mail});
                    })
        .def(
            "dispatch",
            [](const Launches& l, const Shape& shape, std::uint64_t ledger, const Batch& batch, bool columns,
               std::uint64_t stats, std::uint32_t halves, std::uint64_t costs) {
                DispatchLaunch launch = l.dispatch(shape, ledger, batch, columns, stats, halves);
                launch.args.policy.costs = reinterpret_cast<std::int64_t*>(costs);
                return bytes_of(launch);
            },
            py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg("costs") = 0)
        .def(
            "combine",
            [](const Launches& l, const Shape& shape, std::uint64_t ledger, const Answer& answer,
               std::uint64_t x, const Sum& sum, std::uint32_t halves, std::uint64_t costs) {
                CombineLaunch launch = l.combine(shape, ledger, answer, x, sum, halves);
                launch.args.policy.costs = reinterpret_cast<std::int64_t*>(costs);
                return bytes_of(launch);
            },
            py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg("costs") = 0)
        .def("failed",
             [](const Launches& l) {
                 return std::atomic_ref<std::uint32_t>(l.host().failed).load(std::memory_order_acquire) != 0;
             })
        .def("take_bad_choice", &take_bad_choice)
        .def("report", [](const Launches& l) { return report_of(l.host().verdict); })
        .def("disagreement", [](const Launches& l) { return disagreement_of(l.host().verdict); })
        .def("nonsense", [](const Launches& l) { return nonsense_of(l.host().verdict); })
        .def_property("timeout_ns", &Launches::timeout_ns, &Launches::set_timeout_ns)
        .def_static("shared_bytes", &Launches::shared_bytes)
        .def_property_readonly_static("DEVICE_STATE_BYTES",
                                      [](const py::object&) { return sizeof(DeviceState); })
        .def_property_readonly_static("HOST_STATE_BYTES", [](const py::object&) { return sizeof(HostState); })
        .def_property_readonly_static("DISPATCH_BYTES",
                                      [](const py::object&) { return sizeof(DispatchLaunch); })
        .def_property_readonly_static("COMBINE_BYTES",
                                      [](const py::object&) { return sizeof(CombineLaunch); });
}

// The owner of the heap at this address publishes nothing any more.
void mark_gone(std::uint64_t heap) {
    reinterpret_cast<HeapHeader*>(heap)->gone.store(1, std::memory_order_release);
}

bool is_marked(std::uint64_t heap) {
    return reinterpret_cast<HeapHeader*>(heap)->gone.load(std::memory_order_acquire) != 0;
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
    deep_ll::bind_watch(m);
    deep_ll::bind_exchange(m);
    deep_ll::bind_launches(m);
    deep_ll::bind_link(m);
    m.def("copy_choices", &deep_ll::copy_choices_of);
    m.def("levels", &deep_ll::level_names);
    m.def("mark_gone", &deep_ll::mark_gone);
    m.def("is_gone", &deep_ll::is_marked);
    m.def("set_fault", &deep_ll::set_fault_signal);
    m.attr("NONCE_BYTES") = deep_ll::kNonceBytes;
    m.attr("MAX_TOPK") = deep_ll::kMaxTopk;
    m.attr("MAX_TOKENS") = deep_ll::kMaxTokens;
    m.attr("MAX_EXPERTS") = deep_ll::kMaxExperts;
    m.attr("MAX_RANKS") = deep_ll::kMaxRanks;
}
