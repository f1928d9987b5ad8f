// The floor of the link on this machine: the same bytes by UCX's active messages alone. Each message carries
// rows from where they lie and the word that is due when all have come; the receiver copies and counts. No
// checks, no thread, no locks, no batching of what is not already together.
//
//   g++ -O3 -std=c++20 link_floor.cpp -I$UCX/include -L$UCX/lib -Wl,-rpath,$UCX/lib -lucp -lucs -o link_floor
//   ./link_floor RANKS ROWS BYTES ITERS, or ./link_floor --job (link_turns.hpp)
#include <poll.h>
#include <ucp/api/ucp.h>

#include <algorithm>

#include "link_turns.hpp"
#include "link_world.hpp"

namespace {

constexpr std::uint64_t kMessageBytes = 60 << 10;
constexpr int kLooks = 8;  // without anything, before a sleep
constexpr int kNapMs = 1;  // words from the own node ring nobody

struct Head {
    std::uint64_t at, word_at, word;
    std::uint32_t messages, pad;  // with this word
};

void check(ucs_status_t status) {
    if (status != UCS_OK) std::fprintf(stderr, "link_floor: %s\n", ucs_status_string(status)), _exit(3);
}

class Engine {
   public:
    Engine(const World& world, int rank) : world_(world), rank_(rank) {
        ucp_config_t* config;
        check(ucp_config_read("LINK_FLOOR", nullptr, &config));
        for (const auto& [name, value] : {std::pair{"TLS", "tcp"},
                                          {"NET_DEVICES", "lo"},
                                          {"TCP_TX_SEG_SIZE", "64k"},
                                          {"TCP_RX_SEG_SIZE", "64k"},
                                          {"RNDV_THRESH", "inf"}})
            check(ucp_config_modify(config, name, value));
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES;
        params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
        check(ucp_init(&params, config, &context_));
        ucp_config_release(config);
        const ucp_worker_params_t worker_params{};
        check(ucp_worker_create(context_, &worker_params, &worker_));
        ucp_am_handler_param_t handler{};
        handler.field_mask =
            UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
        handler.cb = arrived;
        handler.arg = this;
        check(ucp_worker_set_am_recv_handler(worker_, &handler));
        check(ucp_worker_get_efd(worker_, &event_fd_));
    }

    std::string address() {
        ucp_address_t* address;
        std::size_t bytes;
        check(ucp_worker_get_address(worker_, &address, &bytes));
        return {reinterpret_cast<const char*>(address), bytes};
    }

    void connect(int peer, const std::string& address) {
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
        params.address = reinterpret_cast<const ucp_address_t*>(address.data());
        check(ucp_ep_create(worker_, &params, &eps_[peer]));
    }

    void send(int peer,
              std::uint64_t at,
              const std::uint8_t* from,
              int rows,
              std::uint64_t row_bytes,
              std::uint64_t word) {
        const std::uint64_t per_message = std::max<std::uint64_t>(1, kMessageBytes / row_bytes);
        const auto messages = static_cast<std::uint32_t>((rows + per_message - 1) / per_message);
        ucp_request_param_t params{};
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_COPY_HEADER;
        for (std::uint64_t row = 0; row < std::uint64_t(rows); row += per_message) {
            const Head head{at + row * row_bytes, world_.word_at(rank_), word, messages, 0};
            const std::uint64_t bytes = std::min(per_message, rows - row) * row_bytes;
            void* request =
                ucp_am_send_nbx(eps_[peer], 0, &head, sizeof head, from + row * row_bytes, bytes, &params);
            if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request));
            if (request != nullptr) pending_.push_back(request);
        }
    }

    bool progress() {
        std::erase_if(pending_, [](void* request) {
            const bool done = ucp_request_check_status(request) != UCS_INPROGRESS;
            if (done) ucp_request_free(request);
            return done;
        });
        return ucp_worker_progress(worker_) != 0;
    }

    template <class Ready>
    void wait(Ready ready, std::uint64_t) {
        for (int idle = 0; !ready() || !pending_.empty();) {
            idle = progress() ? 0 : idle + 1;
            if (idle > 0) rest(idle);
        }
    }

    // Ranks that only give the core away keep it from those that have work, where others compute, too.
    void rest(int idle) {
        if (idle < kLooks || ucp_worker_arm(worker_) != UCS_OK) return void(sched_yield());
        pollfd event{event_fd_, POLLIN, 0};
        poll(&event, 1, kNapMs);
    }

   private:
    static ucs_status_t arrived(void* context,
                                const void* header,
                                std::size_t,
                                void* data,
                                std::size_t bytes,
                                const ucp_am_recv_param_t*) {
        auto& engine = *static_cast<Engine*>(context);
        Head head;
        std::memcpy(&head, header, sizeof head);
        std::memcpy(engine.world_.heap + head.at, data, bytes);
        std::uint32_t& come = engine.come_[(head.word_at - World::kWords) / 8];
        if (++come < head.messages) return UCS_OK;
        come = 0;
        reinterpret_cast<std::atomic<std::uint64_t>*>(engine.world_.heap + head.word_at)
            ->store(head.word, std::memory_order_release);
        return UCS_OK;
    }

    const World& world_;
    int rank_;
    ucp_context_h context_;
    ucp_worker_h worker_;
    int event_fd_;
    ucp_ep_h eps_[kMaxRanks] = {};
    std::uint32_t come_[kMaxRanks] = {};
    std::vector<void*> pending_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--job") == 0) return run_job<Engine>();
    return run_world<Engine>(argc, argv, "floor");
}
