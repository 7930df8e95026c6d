// A shop that sells by x402 and by MPP, with @x402/express and mppx as they are. It counts what it did for each order: `made` is
// how often the work was done, `settled` how often a payment of MPP was taken. Those of x402 are settled at its facilitator.
//
//   node commerce_shop.mjs PORT FACILITATOR
import { randomUUID } from "node:crypto";
import { HTTPFacilitatorClient } from "@x402/core/server";
import { ExactEvmScheme } from "@x402/evm/exact/server";
import { paymentMiddleware, x402ResourceServer } from "@x402/express";
import {
  declarePaymentIdentifierExtension,
  paymentIdentifierResourceServerExtension,
} from "@x402/extensions/payment-identifier";
import express from "express";
import { Method, z } from "mppx";
import { Mppx } from "mppx/express";

const [port, facilitator] = process.argv.slice(2);
const counts = { settled: {}, made: {} };

function count(counted, order) {
  counted[order] = (counted[order] ?? 0) + 1;
}

// What is sold is another one each time.
function sell(request, answer) {
  count(counts.made, request.query.order);
  answer.json({ order: request.query.order, item: randomUUID() });
}

// --- x402

const network = "eip155:84532";
const accepts = { scheme: "exact", price: "$0.01", network, payTo: "0x00000000000000000000000000000000000000AA" };
const extensions = { "payment-identifier": declarePaymentIdentifierExtension() };
const server = new x402ResourceServer(new HTTPFacilitatorClient({ url: facilitator }))
  .register(network, new ExactEvmScheme())
  .registerExtension(paymentIdentifierResourceServerExtension);
const byX402 = paymentMiddleware(
  { "/x402/plain": { accepts }, "/x402/named": { accepts, extensions } },
  server,
);

// --- MPP

const mock = Method.from({
  name: "mock",
  intent: "charge",
  schema: {
    credential: { payload: z.object({ token: z.string() }) },
    request: z.object({ amount: z.string() }),
  },
});
const taken = Method.toServer(mock, {
  async verify({ envelope }) {
    count(counts.settled, new URL(envelope.capturedRequest.url).searchParams.get("order"));
    return { method: "mock", status: "success", reference: randomUUID(), timestamp: new Date().toISOString() };
  },
});
const byMpp = Mppx.create({ methods: [taken], realm: "shop.example", secretKey: randomUUID() + randomUUID() });

const app = express();
app.use(express.json());
app.get("/counts", (_, answer) => answer.json(counts));
app.use(byX402);
app.all(["/x402/plain", "/x402/named"], sell);
app.all("/mpp", byMpp.charge({ amount: "1" }), sell);
app.listen(Number(port), "127.0.0.1");
