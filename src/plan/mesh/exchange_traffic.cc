#include "plan/mesh/exchange_traffic.h"

#include "plan/refusals.h"

namespace pagoda {

Result<ExchangeTraffic> exchange_traffic(int64_t hidden_size, int64_t experts_per_token,
                                     const PipelineBatch& batch, const Mesh& mesh) {
  RETURN_IF_ERROR(check_batch(batch, mesh));
  RETURN_IF_ERROR(check_integer("hidden_size", hidden_size));
  RETURN_IF_ERROR(check_integer("experts_per_token", experts_per_token));
  const auto devices = static_cast<double>(mesh.expert);
  const double tokens = static_cast<double>(batch.microbatch_sequences) *
                        static_cast<double>(batch.sequence_len);
  const double bytes = static_cast<double>(kValueBytes * hidden_size * experts_per_token) * tokens;
  ExchangeTraffic traffic;
  if (batch.of == SequencesOf::kPaper) {
    traffic.pair_bytes = traffic.sent_bytes = bytes / devices;
    traffic.group_bytes = (devices - 1) * bytes;
    return traffic;
  }
  const double of_device = batch.of == SequencesOf::kRank ? bytes : bytes / devices;
  traffic.pair_bytes = mesh.expert == 1 ? 0 : of_device / devices;
  traffic.sent_bytes = (devices - 1) * traffic.pair_bytes;
  traffic.group_bytes = devices * traffic.sent_bytes;
  return traffic;
}

Result<double> stage_send_bytes(int64_t hidden_size, const PipelineBatch& batch,
                                const Mesh& mesh) {
  RETURN_IF_ERROR(check_batch(batch, mesh));
  RETURN_IF_ERROR(check_integer("hidden_size", hidden_size));
  const double bytes = static_cast<double>(kValueBytes * hidden_size) *
                       static_cast<double>(batch.microbatch_sequences) *
                       static_cast<double>(batch.sequence_len);
  return batch.of == SequencesOf::kGroup ? bytes / static_cast<double>(mesh.expert) : bytes;
}

}  // namespace pagoda
