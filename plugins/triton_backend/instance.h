// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "triton_backend/metrics.h"
#include "triton_backend/model.h"
#include "triton_backend/pending.h"
#include "triton_backend/run.h"
#include "triton_backend/served_instance.h"

namespace padfree {

// One instance of a model: the server's thread packs requests and starts runs; a thread of the instance waits for these
// and answers. With two lanes, one run is packed while another computes.
class Instance : public ServedInstance {
 public:
  Instance(std::shared_ptr<Model> model, TRITONBACKEND_ModelInstance* handle, int32_t device);
  ~Instance() override;  // waits until all runs have been answered
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  void execute(TRITONBACKEND_Request** requests, uint32_t count) override;

 private:
  struct Started {
    Run run;
    Lane* lane;
  };

  using Requests = std::vector<std::shared_ptr<Pending>>;

  Requests takeOver(TRITONBACKEND_Request** requests, uint32_t count) const;
  bool read(Pending& pending) const;
  void startRuns(const Requests& requests);
  void startRun(Run run);
  Lane* takeLane();
  void waitForLane();
  void finishRuns();  // what the instance's thread does
  void finish(Started& started);
  void count(const PadfreeSizes& sizes) const;
  void giveResults(Started& started, uint64_t ended);
  void answer(Pending& pending, const Times& times) const;

  const std::shared_ptr<Model> model_;
  TRITONBACKEND_ModelInstance* const handle_;
  const std::shared_ptr<Engine> engine_;
  const InstanceMetrics metrics_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Lane*> free_;
  std::deque<Started> started_;
  bool ends_ = false;
  std::thread finisher_;
};

}  // namespace padfree
