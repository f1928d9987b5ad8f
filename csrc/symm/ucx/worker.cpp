// worker.cpp: how UCX is set up for the link, and the calls of it.
#include "symm/ucx/worker.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "symm/doorbell.hpp"

namespace deep_ll {
namespace {

constexpr char kPrefix[] = "DEEP_LL";
constexpr unsigned kMessageId = 0;

// Settings come from DEEP_LL_UCX_* alone: what users set for their own UCX must not change ours. But UCX
// reads UCX_* first, whatever prefix it is told, so these are hidden while it reads. (All of them at once:
// what is unset while others look at the environment should be over soon.)
class OthersSettingsHidden {
   public:
    OthersSettingsHidden() {
        for (char** entry = environ; *entry != nullptr; ++entry) {
            const std::string text = *entry;
            const std::size_t end = text.find('=');
            if (text.starts_with("UCX_") && end != std::string::npos)
                hidden_.emplace_back(text.substr(0, end), text.substr(end + 1));
        }
        for (const auto& [name, value] : hidden_) unsetenv(name.c_str());
    }
    ~OthersSettingsHidden() {
        for (const auto& [name, value] : hidden_) setenv(name.c_str(), value.c_str(), 1);
    }
    OthersSettingsHidden(const OthersSettingsHidden&) = delete;
    OthersSettingsHidden& operator=(const OthersSettingsHidden&) = delete;

   private:
    std::vector<std::pair<std::string, std::string>> hidden_;
};

class Config {
   public:
    explicit Config(const Ucp& ucp) : ucp_(ucp) {
        ucp.check(ucp.config_read(kPrefix, nullptr, &config_), "reading UCX's settings");
    }
    ~Config() { ucp_.config_release(config_); }
    Config(const Config&) = delete;
    Config& operator=(const Config&) = delete;

    static bool is_set(const std::string& name) {
        return std::getenv((std::string(kPrefix) + "_UCX_" + name).c_str()) != nullptr;
    }
    // Unless the environment says otherwise.
    void choose(const std::string& name, const std::string& value) {
        if (is_set(name)) return;
        ucp_.check(ucp_.config_modify(config_, name.c_str(), value.c_str()), name.c_str());
    }
    // For settings that not every version or build has.
    void prefer(const std::string& name, const std::string& value) {
        if (!is_set(name)) ucp_.config_modify(config_, name.c_str(), value.c_str());
    }
    const ucp_config_t* get() const { return config_; }

   private:
    const Ucp& ucp_;
    ucp_config_t* config_ = nullptr;
};

}  // namespace

Worker::Worker(const WorkerOptions& options) : ucp_(options.library_path) {
    const OthersSettingsHidden hidden;
    init(options);
    try {
        create();
    } catch (...) {
        if (worker_ != nullptr) ucp_.worker_destroy(worker_);
        ucp_.cleanup(context_);
        throw;
    }
}

void Worker::init(const WorkerOptions& options) {
    Config config(ucp_);
    // The device belongs to the transport: who names another transport names its device.
    if (!options.net_device.empty() && !Config::is_set("TLS")) {
        config.choose("NET_DEVICES", options.net_device);
    }
    config.choose("TLS", "tcp");
    // Messages are eager and in one fragment.
    config.choose("RNDV_THRESH", "inf");
    config.prefer("TCP_TX_SEG_SIZE", "64k");
    config.prefer("TCP_RX_SEG_SIZE", "64k");
    // NOTE [one event at a time]: UCX's TCP fetches events of many sockets at once and handles one after the
    // other. If one of them ends a connection (a peer is gone, or both ends connected at once), the
    // connection of a later one may be freed before its turn.
    config.prefer("TCP_MAX_POLL", "1");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                        UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.estimated_num_eps = static_cast<std::size_t>(options.size);
    params.name = "deep_ll";
    ucp_.check(ucp_.init_version(kUcpMajor, kUcpMinor, &params, config.get(), &context_),
               ("UCX finds no way to send over device '" + options.net_device + "'").c_str());
}

void Worker::create() {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucp_.check(ucp_.worker_create(context_, &params, &worker_), "making a worker of UCX");
    ucp_.check(ucp_.worker_get_efd(worker_, &event_fd_), "asking UCX for a descriptor to wait on");
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    ucp_.check(ucp_.worker_get_address(worker_, &address, &bytes), "asking UCX for its address");
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    ucp_.worker_release_address(worker_, address);
}

Worker::~Worker() {
    ucp_.worker_destroy(worker_);
    ucp_.cleanup(context_);
}

void Worker::receive(ucp_am_recv_callback_t handler, void* context) {
    ucp_am_handler_param_t params{};
    params.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = kMessageId;
    params.cb = handler;
    params.arg = context;
    ucp_.check(ucp_.worker_set_am_recv_handler(worker_, &params), "setting UCX's handler");
}

ucp_ep_h Worker::connect(const std::string& address, ucp_err_handler_cb_t on_error, void* context) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {on_error, context};
    ucp_ep_h ep = nullptr;
    ucp_.check(ucp_.ep_create(worker_, &params, &ep), "connecting to a peer");
    return ep;
}

ucs_status_ptr_t Worker::send(ucp_ep_h to,
                              const std::uint8_t* message,
                              std::uint64_t bytes,
                              ucp_send_nbx_callback_t done,
                              void* context) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    params.cb.send = done;
    params.user_data = context;
    return ucp_.am_send_nbx(to, kMessageId, nullptr, 0, message, bytes, &params);
}

ucs_status_ptr_t Worker::flush(ucp_ep_h ep) {
    const ucp_request_param_t params{};
    return ucp_.ep_flush_nbx(ep, &params);
}

void Worker::close(ucp_ep_h ep) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_.ep_close_nbx(ep, &params);
    if (UCS_PTR_IS_PTR(request)) ucp_.request_free(request);
}

void Worker::finish(const std::vector<ucs_status_ptr_t>& requests, std::int64_t deadline_ns) {
    const auto pending = [&](ucs_status_ptr_t request) {
        return UCS_PTR_IS_PTR(request) && ucp_.request_check_status(request) == UCS_INPROGRESS;
    };
    while (std::any_of(requests.begin(), requests.end(), pending) && now_ns() < deadline_ns) {
        if (!progress()) yield();
    }
    for (const ucs_status_ptr_t request : requests) {
        if (UCS_PTR_IS_PTR(request)) ucp_.request_free(request);
    }
}

}  // namespace deep_ll
